package vercelworkflow

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// The values on the left are what devalue 5 writes.
func TestReadable(t *testing.T) {
	t.Parallel()
	pack := func(kind, body string) string {
		var b bytes.Buffer
		b.WriteString(kind)
		if kind == "gzip" {
			z := gzip.NewWriter(&b)
			z.Write([]byte(body))
			z.Close()
		} else {
			z, err := zstd.NewWriter(&b)
			if err != nil {
				t.Fatal(err)
			}
			z.Write([]byte(body))
			z.Close()
		}
		return b.String()
	}
	mapped, err := encoding.Marshal(map[string]string{"message": "no"})
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`devl[5]`:                     `5`,
		`devl["a<b"]`:                 `"a<b"`,
		`devl-1`:                      `null`,
		`devl[[1],{"a":2},1]`:         `[{"a":1}]`,
		`devl[{"b":1,"a":2},[],null]`: `{"b":[],"a":null}`,
		`devl[["Date","1970-01-01T00:00:00.000Z"]]`:                                `"1970-01-01T00:00:00.000Z"`,
		`devl[["Date",1],"1970-01-01T00:00:00.000Z"]`:                              `"1970-01-01T00:00:00.000Z"`,
		`devl[["BigInt","1180591620717411303424"]]`:                                `1180591620717411303424`,
		`devl[["Map",1,2],"a",1]`:                                                  `[["a",1]]`,
		`devl[["Set",1,2],1,2]`:                                                    `[1,2]`,
		`devl[["Map",1],[2],[3,4],"a",1]`:                                          `[["a",1]]`,
		`devl[["Set",1],[2,3],1,2]`:                                                `[1,2]`,
		`devl[["null","k",1],7]`:                                                   `{"k":7}`,
		`devl[["RegExp","a+","g"]]`:                                                `"/a+/g"`,
		`devl[["Uint8Array",1],"AP8="]`:                                            `"Uint8Array AP8="`,
		`devl[["FatalError",1],{"message":2,"stack":3},"no","at x"]`:               `{"type":"FatalError","message":"no","stack":"at x"}`,
		`devl[["Instance",1],{"classId":2,"data":3},"class//a//B",{"id":4},"sbx"]`: `{"id":"sbx"}`,
		`devl[{"self":0}]`:                                                         `{"self":"[circular]"}`,
		`devl[[1,-2,-3,-4,-6],1]`:                                                  `[1,null,"NaN","Infinity",0]`,
		`devl[[-7,3,1,1],5]`:                                                       `[null,5,null]`,
		pack("gzip", `devl[[1],2]`):                                                `[2]`,
		pack("zstd", `devl[[1],2]`):                                                `[2]`,
		"\x00\x00\x00\x07devl[5]":                                                  `5`,
		string(mapped):                                                             `{"message":"no"}`,
	} {
		if got := string(Readable([]byte(in))); got != "json"+want {
			t.Errorf("%q is read as %q, want %s", in, got, want)
		}
	}
	for _, in := range []string{"", "dev", "devl", "devl[", "devl[]", "devl[[9]]", "devl[[0", `json{"a":1}`, "encrxxxx", "zstdxx", "gzip", "\xa1\x61a", "plain text"} {
		if got := string(Readable([]byte(in))); got != in {
			t.Errorf("%q is changed to %q", in, got)
		}
	}
	// References may make much of little.
	bomb := `[[1,1,1,1,1,1,1,1]`
	for i := range 40 {
		bomb += `,[` + strings.TrimSuffix(strings.Repeat(json.Number(string(itoa(int64(i+2)))).String()+",", 8), ",") + `]`
	}
	if got := Readable([]byte("devl" + bomb + ",1]")); string(got[:4]) != "devl" {
		t.Errorf("%d bytes were made of it", len(got))
	}
}

func TestFromJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`5`: `devl[5]`, `"a"`: `devl["a"]`, `null`: `devl[null]`, `[]`: `devl[[]]`, `{}`: `devl[{}]`,
		`{"a":[1,{"b":true}],"c":1.5e3}`: `devl[{"a":1,"c":5},[2,3],1,{"b":4},true,1.5e3]`,
	} {
		got, err := fromJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
		var a, b any
		if err := json.Unmarshal([]byte(in), &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(Readable(got)[4:], &b); err != nil {
			t.Errorf("%s cannot be read: %v", got, err)
		}
	}
}

func FuzzReadable(f *testing.F) {
	for _, s := range []string{`devl[[1],{"a":2},1]`, `devl[["Map",1,2],"a",1]`, `devl[["Error",1],{"message":2},"no"]`, "\x00\x00\x00\x07devl[5]", "\xa1\x67message\x61a"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out := Readable(b)
		if !bytes.Equal(out, b) && !json.Valid(bytes.TrimPrefix(out, []byte("json"))) {
			t.Errorf("%q is no JSON", out)
		}
		if len(out) > maxReadable+4 && !bytes.Equal(out, b) {
			t.Error("it is too long")
		}
	})
}
