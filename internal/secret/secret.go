// Package secret seals values that must not be readable in the database, such as
// the credentials of a network policy. The key is in a file of its own, and
// further keys are derived from it.
//
// Sealing protects a database, or a backup of it, against readers without the
// key file. A reader with the key file, such as the daemon's user, can read
// everything. Keep the backups of the two files apart.
package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cayhq/cay"
)

const (
	keySize = 32
	// version is the first byte of sealed values; another format would have
	// another version.
	version = 1
	// keyPrefix is the beginning of a key file. The key and the first bytes of
	// the key's hash follow, in hexadecimal.
	keyPrefix = "cay-secret-key-1 "
	checkSize = 4
)

// Box seals and opens values with one key. It is safe for concurrent use.
type Box struct {
	key  []byte
	aead cipher.AEAD
}

// Open returns the Box of the key in keyFile. If keyFile is missing, Open
// creates it, readable by its owner only. Open removes other users' permissions.
// Errors: internal with a hint for a file that is damaged or has no key.
func Open(keyFile string) (*Box, error) {
	key, err := read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(keyFile); err == nil {
			key, err = read(keyFile)
		}
	}
	if err != nil {
		return nil, err
	}
	return newBox(key)
}

func newBox(key []byte) (*Box, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return &Box{key, aead}, nil
}

func read(keyFile string) ([]byte, error) {
	f, err := os.Open(keyFile)
	if err != nil {
		return nil, fmt.Errorf("open key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := f.Chmod(0o600); err != nil {
			return nil, fmt.Errorf("take others' permissions from the key: %w", err)
		}
	}
	text := make([]byte, 256)
	n, err := f.Read(text)
	if err != nil && n == 0 && info.Size() > 0 {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, ok := parse(text[:n])
	if !ok {
		return nil, cay.Errorf(cay.Internal, "%s is damaged, or no key of cay", keyFile).
			WithHint("restore it from a backup; without it nothing sealed can be read. Moved away, a new key is made, and sandboxes of before cannot be started")
	}
	return key, nil
}

// parse returns the key in the content of a key file.
func parse(text []byte) (key []byte, ok bool) {
	hexed, ok := bytes.CutPrefix(bytes.TrimSpace(text), []byte(keyPrefix))
	raw, err := hex.DecodeString(string(hexed))
	if !ok || err != nil || len(raw) != keySize+checkSize || !bytes.Equal(check(raw[:keySize]), raw[keySize:]) {
		return nil, false
	}
	return raw[:keySize], true
}

// ID identifies the key in the content of a key file; it tells nothing about the key.
// Errors: invalid (no key).
func ID(content []byte) (string, error) {
	key, ok := parse(content)
	if !ok {
		return "", cay.Errorf(cay.Invalid, "it is damaged, or no key of cay")
	}
	return hex.EncodeToString(check(key)), nil
}

// check detects a damaged key. It is too short to help in guessing a random key.
func check(key []byte) []byte {
	sum := sha256.Sum256(append([]byte(keyPrefix), key...))
	return sum[:checkSize]
}

// create creates a key file atomically. If another process was first, its file
// stays.
func create(keyFile string) (err error) {
	key := make([]byte, keySize)
	rand.Read(key)                                          // never fails
	f, err := os.CreateTemp(filepath.Dir(keyFile), ".key-") // mode 0600
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	defer func() {
		if rerr := os.Remove(f.Name()); err == nil && rerr != nil {
			err = fmt.Errorf("make key: %w", rerr)
		}
	}()
	_, err = fmt.Fprintf(f, "%s%x%x\n", keyPrefix, key, check(key))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	if err := os.Link(f.Name(), keyFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make key: %w", err)
	}
	// Sync the directory: a sealed value must not survive a power cut that loses
	// the key.
	dir, err := os.Open(filepath.Dir(keyFile))
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	return nil
}

// Seal encrypts plain so that only Open, given the same owner, can read it.
// owner names the row that the value belongs to: Open fails for sealed bytes
// that were moved to another owner.
func (b *Box) Seal(plain []byte, owner string) []byte {
	return b.aead.Seal([]byte{version}, nil, plain, []byte(owner))
}

// Open decrypts a value sealed for owner. It fails for a value that is damaged,
// or sealed with another key or for another owner.
func (b *Box) Open(sealed []byte, owner string) ([]byte, error) {
	if len(sealed) == 0 || sealed[0] != version {
		return nil, cay.Errorf(cay.Internal, "what is sealed for %s is damaged, or of a newer cay", owner)
	}
	plain, err := b.aead.Open(nil, nil, sealed[1:], []byte(owner))
	if err != nil {
		return nil, cay.Errorf(cay.Internal, "what is sealed for %s does not open: it is damaged, or secret.key is not the key it was sealed with", owner)
	}
	return plain, nil
}

// Key returns a key of 32 bytes for one purpose, the same each time. Keys of
// different purposes reveal nothing about each other, nor about the Box's key.
func (b *Box) Key(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, b.key, nil, "cay "+purpose, keySize)
	if err != nil {
		panic(err) // only for a length that is too large
	}
	return key
}
