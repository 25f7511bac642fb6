package bench

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// The provider and the clients understand each other without a gateway.
func TestField(t *testing.T) {
	t.Parallel()
	stdin, ask := io.Pipe()
	answers, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServeField(t.Context(), nil, stdin, stdout) }()
	requests, out := json.NewEncoder(ask), json.NewDecoder(answers)
	var first fieldAnswer
	if err := out.Decode(&first); err != nil || first.Provider == "" {
		t.Fatalf("%+v %v", first, err)
	}
	for _, r := range []fieldRequest{
		{Do: "call", Path: "/v1/chat/completions", C: 4, Seconds: 0.05},
		{Do: "call", Path: "/v1/messages", C: 4, Seconds: 0.05, Prompt: 200 << 10},
		{Do: "call", Path: "/v1/chat/completions", C: 4, Seconds: 0.05, Stream: true, Pace: 1},
		{Do: "call", Path: "/v1/messages", C: 4, Seconds: 0.05, Stream: true, Pace: 1},
		{Do: "hold", Path: "/v1/chat/completions", C: 4, Stream: true},
		{Do: "release"},
	} {
		if err := requests.Encode(r); err != nil {
			t.Fatal(err)
		}
		var a fieldAnswer
		if err := out.Decode(&a); err != nil || a.Error != "" {
			t.Fatalf("%+v: %+v %v", r, a, err)
		}
		if r.Do == "call" && (a.Calls < 4 || a.P50 <= 0 || a.First <= 0 || a.First > a.P50) {
			t.Errorf("%+v: %+v", r, a)
		}
		if r.Stream && r.Do == "call" && a.P50 < 10 {
			t.Errorf("a paced stream took %v ms", a.P50)
		}
	}
	if err := requests.Encode(fieldRequest{Do: "dance"}); err != nil {
		t.Fatal(err)
	}
	var a fieldAnswer
	if err := out.Decode(&a); err != nil || a.Error == "" {
		t.Errorf("%+v %v", a, err)
	}
	ask.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A gateway may close a connection after an answer, but must answer once.
func TestField_ClosedConnections(t *testing.T) {
	t.Parallel()
	answer := append([]byte("HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n"), strings.Repeat("tok ", fieldTokens)...)
	for _, answers := range []int{0, 3} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				for range answers {
					if _, err := c.Read(make([]byte, 100)); err != nil {
						break
					}
					_, _ = c.Write(answer)
				}
				c.Close()
			}
		}()
		all, err := oneClient(l.Addr().String(), []byte("ask"), false, time.Now().Add(50*time.Millisecond))
		for d := 100 * time.Millisecond; err == nil && len(all) <= answers && d < time.Minute; d *= 2 { // the machine is busy
			all, err = oneClient(l.Addr().String(), []byte("ask"), false, time.Now().Add(d))
		}
		if answers == 0 && (err == nil || len(all) != 0) || answers > 0 && (err != nil || len(all) <= answers) {
			t.Errorf("%d answers for a connection: %d calls, %v", answers, len(all), err)
		}
	}
}
