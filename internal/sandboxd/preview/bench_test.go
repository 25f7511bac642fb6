package preview_test

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"time"
)

// BenchmarkProxy measures requests to a trivial server in this process, by sequential
// visitors (p50-µs) and by many concurrent ones, directly and through a Handler. It does
// not include the guest's network.
func BenchmarkProxy(b *testing.B) {
	wo := newWorld(b, hello)
	f := serve(b, wo, nil)
	viaHTTP2 := serve(b, wo, nil, "h2c")
	for _, way := range []struct {
		name   string
		client *http.Client
		url    string
		cookie string
	}{
		{"Direct", f.client, "http://" + wo.guest + "/", ""},
		{"Preview", f.client, "http://" + host(open) + "/", ""},
		{"Private", f.client, "http://" + host(closed) + "/", cookie},
		{"PreviewHTTP2", viaHTTP2.client, "http://" + host(open) + "/", ""},
	} {
		client := way.client
		if way.name == "Direct" {
			tr := &http.Transport{MaxIdleConnsPerHost: 64}
			b.Cleanup(tr.CloseIdleConnections)
			client = &http.Client{Transport: tr}
		}
		get := func(b *testing.B) {
			r, err := http.NewRequestWithContext(b.Context(), "GET", way.url, nil)
			if err != nil {
				b.Fatal(err)
			}
			if way.cookie != "" {
				r.Header.Set("Cookie", way.cookie)
			}
			resp, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
				b.Error(resp.Status, err)
			}
			resp.Body.Close()
		}
		b.Run(way.name+"/OneByOne", func(b *testing.B) {
			b.ReportAllocs()
			took := make([]time.Duration, 0, 1<<16)
			for b.Loop() {
				start := time.Now()
				get(b)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
		})
		b.Run(way.name+"/AtOnce", func(b *testing.B) {
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get(b)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// BenchmarkProxy_download is a body of 64 MiB.
func BenchmarkProxy_download(b *testing.B) {
	content := make([]byte, 64<<20)
	f := serve(b, newWorld(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(content) })), nil)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		resp, err := f.client.Do(f.request("GET", open, "/", nil))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(content)) {
			b.Fatal(n, err)
		}
		resp.Body.Close()
	}
}
