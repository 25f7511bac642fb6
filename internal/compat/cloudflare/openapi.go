package cloudflare

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cayhq/cay/internal/wire"
)

//go:embed openapi.json
var openAPI []byte

func handleOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", wire.TypeJSON)
	_, _ = w.Write(openAPI) // fails only when the client left
	return nil
}

// operation is an operation of the document, as the page shows it.
type operation struct {
	Method, Path string // not in the document's operation
	ID           string `json:"operationId"`
	Summary      string `json:"summary"`
	Description  string `json:"description"`
	Parameters   []struct {
		Name        string `json:"name"`
		In          string `json:"in"`
		Description string `json:"description"`
	} `json:"parameters"`
}

// page is the document as a page. It has no scripts, which the policy of the daemon's
// answers would not let run.
var page = sync.OnceValues(func() ([]byte, error) {
	var doc struct {
		Info  struct{ Title, Description string }
		Paths map[string]map[string]operation
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		return nil, fmt.Errorf("read the bridge's OpenAPI document: %w", err)
	}
	var ops []operation
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			op := doc.Paths[path][method]
			op.Method, op.Path = strings.ToUpper(method), path
			ops = append(ops, op)
		}
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, map[string]any{"Info": doc.Info, "Operations": ops})
	return b.Bytes(), err
})

var pageTemplate = template.Must(template.New("openapi").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{.Info.Title}}</title>
<h1>{{.Info.Title}}</h1>
<p>{{.Info.Description}}</p>
{{range .Operations}}<h2><code>{{.Method}} {{.Path}}</code></h2>
<p>{{.Summary}}. {{.Description}}</p>
{{if .Parameters}}<ul>{{range .Parameters}}<li><code>{{.Name}}</code> ({{.In}}): {{.Description}}</li>
{{end}}</ul>
{{end}}{{end}}</html>
`))

func handleOpenAPIPage(w http.ResponseWriter, _ *http.Request) error {
	b, err := page()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b) // fails only when the client left
	return nil
}
