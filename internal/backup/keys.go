package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"filippo.io/age"

	"github.com/cayhq/cay"
)

// maxWorkFactor bounds the work, and the memory of 128 << n * 8 bytes, that opening the keys
// of a backup takes.
const maxWorkFactor = 20

// seal encrypts the keys with a passphrase.
func seal(k sealedKeys, o Options) ([]byte, error) {
	r, err := age.NewScryptRecipient(o.Passphrase)
	if err != nil {
		return nil, err
	}
	if o.WorkFactor > 0 {
		r.SetWorkFactor(o.WorkFactor)
	}
	plain, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, r)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(plain)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unseal decrypts the keys. Errors: invalid (wrong passphrase, damaged).
func unseal(sealed []byte, passphrase string) (k sealedKeys, err error) {
	id, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return k, cay.Errorf(cay.Invalid, "the keys cannot be opened: %w", err)
	}
	id.SetMaxWorkFactor(maxWorkFactor)
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if wrong := new(age.NoIdentityMatchError); errors.As(err, &wrong) {
		return k, cay.Errorf(cay.Invalid, "the passphrase does not open the keys of this backup")
	}
	var plain []byte
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(r, maxKeys))
	}
	if err == nil {
		err = json.Unmarshal(plain, &k)
	}
	if err != nil {
		return k, cay.Errorf(cay.Invalid, "the keys of this backup are damaged: %w", err)
	}
	for name := range k.Files {
		if !keyFile.MatchString(name) {
			return k, cay.Errorf(cay.Invalid, "the keys of this backup are damaged: %q is no file of a data directory", name)
		}
	}
	return k, nil
}
