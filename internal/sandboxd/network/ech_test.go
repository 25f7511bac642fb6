package network

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"testing"
)

// echConfig returns a list with a single configuration for encrypted hellos, whose outer
// name is public.
func echConfig(t *testing.T, public string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u16 := binary.BigEndian.AppendUint16
	pub := key.PublicKey().Bytes()
	contents := append([]byte{7}, u16(nil, 0x20)...) // config id, DHKEM(X25519)
	contents = append(u16(contents, uint16(len(pub))), pub...)
	contents = u16(u16(u16(contents, 4), 1), 1)            // HKDF-SHA256, AES-128-GCM
	contents = append(contents, 0, byte(len(public)))      // longest name, its length
	contents = u16(append(contents, public...), 0)         // no extensions
	config := u16(u16(nil, 0xfe0d), uint16(len(contents))) // version, length
	config = append(config, contents...)
	return append(u16(nil, uint16(len(config))), config...)
}
