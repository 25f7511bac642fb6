package preview

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
)

// page is an answer from cay itself. It contains only facts that its visitor may know: a
// page that does not depend on the label is the same for all visitors.
type page struct {
	status  int
	title   string
	text    string
	hint    string
	refresh bool // the browser asks again in refreshAfter seconds
	retry   bool // later it may be another answer
}

const refreshAfter = 2

var (
	pageUnknown = page{status: http.StatusNotFound, title: "There is no such preview",
		text: "No sandbox serves anything at this address.", hint: "Check the address: it has to be copied whole."}
	pageGone = page{status: http.StatusGone, title: "This preview is gone",
		text: "The sandbox behind this address has ended, or the port is no longer declared. The address is not used again."}
	pagePrivate = page{status: http.StatusUnauthorized, title: "This preview is private",
		text: "It opens with a link that is still valid.", hint: "Ask its owner for a new link."}
	pageForeign = page{status: http.StatusForbidden, title: "The request comes from another site",
		text: "A private preview answers only its own pages.", hint: "Programs send their token in the header " + TokenHeader + "."}
	pageBusy = page{status: http.StatusServiceUnavailable, title: "Too many requests at once",
		text: "This preview has as many requests and connections open as it may.", retry: true}
	pageStarting = page{status: http.StatusServiceUnavailable, title: "The sandbox is starting",
		text: "The preview opens by itself when it is there.", retry: true, refresh: true}
	pagePaused = page{status: http.StatusServiceUnavailable, title: "The sandbox is not running",
		text: "It is paused, or about to be.", hint: "Its owner can resume it.", retry: true}
	pageClosing = page{status: http.StatusServiceUnavailable, title: "The preview server is restarting",
		text: "The sandbox runs on.", retry: true, refresh: true}
	pageBroken = page{status: http.StatusInternalServerError, title: "Internal error",
		text: "The preview cannot be shown. The server's log says why."}
	pageConnect = page{status: http.StatusMethodNotAllowed, title: "Not a proxy",
		text: "Previews take no CONNECT requests."}
	pageSecret = page{status: http.StatusBadRequest, title: "The address has a token of the API in it",
		text: "The sandbox was not asked: it could keep the token.", hint: "Take it out of the address, and revoke it if others have seen it."}
)

func pageNotListening(v *visit) page {
	return page{status: http.StatusBadGateway, title: fmt.Sprintf("Nothing listens on port %d yet", v.target.Port),
		text: "The sandbox runs, but no server in it answers on this port.",
		hint: fmt.Sprintf("Start your server on 0.0.0.0:%d or 127.0.0.1:%d inside the sandbox.", v.target.Port, v.target.Port), retry: true, refresh: true}
}

func pageSilent(v *visit) page {
	if v.target == nil {
		return pageStarting
	}
	return page{status: http.StatusGatewayTimeout, title: fmt.Sprintf("The server on port %d does not answer", v.target.Port),
		text: "It took the request, and has sent nothing back in time.", retry: true}
}

func pageGarbled(v *visit) page {
	return page{status: http.StatusBadGateway, title: fmt.Sprintf("The server on port %d gave no usable answer", v.target.Port),
		text: "It broke off the connection, or does not speak HTTP there.", hint: "Its output in the sandbox may say more."}
}

const style = `:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:20vh auto 0;padding:0 1.5rem}` +
	`h1{font-size:1.4rem;margin:0 0 .5rem}p{margin:.25rem 0}.hint{opacity:.7}small{display:block;margin-top:2rem;opacity:.5}`

var pageTemplate = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{{- with .Refresh}}
<meta http-equiv="refresh" content="{{.}}">
{{- end}}
<title>{{.Title}}</title>
<style>` + style + `</style>
</head>
<body>
<h1>{{.Title}}</h1>
<p>{{.Text}}</p>
{{- with .Hint}}
<p class="hint">{{.}}</p>
{{- end}}
<small>{{.Status}} · cay</small>
</body>
</html>
`))

var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

// writePage answers with p: a page for browsers, a line for programs. It does nothing if
// an answer has begun.
func writePage(w *recorder, r *http.Request, p page) {
	if w.status != 0 {
		return
	}
	var body bytes.Buffer
	kind := "text/plain; charset=utf-8"
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		kind = "text/html; charset=utf-8"
		refresh := 0
		if p.refresh && r.Method == http.MethodGet {
			refresh = refreshAfter
		}
		if err := pageTemplate.Execute(&body, map[string]any{
			"Status": p.status, "Title": p.title, "Text": p.text, "Hint": p.hint, "Refresh": refresh,
		}); err != nil {
			panic("preview: a page does not render: " + err.Error())
		}
	} else {
		line := p.title + ": " + p.text
		if p.hint != "" {
			line += " " + p.hint
		}
		body.WriteString(line + "\n")
	}
	h := w.Header()
	clear(h) // of an answer that was meant to be
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Content-Type", kind)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.retry {
		h.Set("Retry-After", strconv.Itoa(refreshAfter))
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", TokenHeader)
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(body.Bytes()) // fails only when the visitor left
}
