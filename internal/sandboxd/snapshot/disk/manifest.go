package disk

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// manifest has the fields of fscheckpoint.pb that this package needs.
type manifest struct {
	version  uint64
	pageSize uint64
	endian   string
	memory   []memoryFile
	trees    []tree
}

// memoryFile says where the pages of a file system are.
type memoryFile struct {
	mount              string
	metaStart, metaEnd uint64 // in pages_meta.img
	pagesStart         uint64 // in pages.img
}

// tree says where a file system's archive is.
type tree struct {
	mount      string
	start, end uint64 // in multitar.img
}

var errProto = errors.New("not a protobuf of the kind it should be")

// fields calls f for each field of a message: with its number, and its value as a number
// or as bytes, depending on its type. For fields of other types both values are zero.
func fields(b []byte, f func(num protowire.Number, n uint64, bytes []byte) error) error {
	for len(b) > 0 {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errProto
		}
		b = b[size:]
		var n uint64
		var bytes []byte
		switch typ {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			bytes, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(num, typ, b)
		}
		if size < 0 {
			return errProto
		}
		b = b[size:]
		if err := f(num, n, bytes); err != nil {
			return err
		}
	}
	return nil
}

func parseManifest(b []byte) (m manifest, err error) {
	err = fields(b, func(num protowire.Number, n uint64, b []byte) (err error) {
		switch num {
		case 1:
			m.version = n
		case 3:
			m.pageSize = n
		case 4:
			m.endian = string(b)
		case 5:
			var f memoryFile
			f.mount, err = parseResource(b, map[protowire.Number]*uint64{2: &f.metaStart, 3: &f.metaEnd, 4: &f.pagesStart})
			m.memory = append(m.memory, f)
		case 6:
			var t tree
			t.mount, err = parseResource(b, map[protowire.Number]*uint64{2: &t.start, 3: &t.end})
			m.trees = append(m.trees, t)
		}
		if len(m.memory) > maxMounts || len(m.trees) > maxMounts {
			return errProto
		}
		return err
	})
	return m, err
}

// parseResource reads a message whose first field is the id of a resource, and whose
// further fields are numbers.
func parseResource(b []byte, numbers map[protowire.Number]*uint64) (mount string, err error) {
	err = fields(b, func(num protowire.Number, n uint64, b []byte) error {
		if p := numbers[num]; p != nil {
			*p = n
		}
		if num != 1 {
			return nil
		}
		return fields(b, func(num protowire.Number, _ uint64, b []byte) error {
			if num == 2 {
				mount = string(b)
			}
			return nil
		})
	})
	return mount, err
}
