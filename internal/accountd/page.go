package accountd

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

// The page on which a person decides about a login. The page has no session: the
// person types a token in, so no other page can decide in the person's name, and
// there are no cookies. It holds no scripts and loads nothing.

const pageStyle = `body{font:16px/1.5 system-ui,sans-serif;max-width:26rem;margin:3rem auto;padding:0 1rem;color:#222;background:#fff}
label{display:block;margin-top:1rem}
input{font:inherit;width:100%;box-sizing:border-box;padding:.4rem}
button{font:inherit;margin:1.5rem .5rem 0 0;padding:.4rem 1rem}
.wrong{color:#a00}
dt{margin-top:.5rem;color:#666}
dd{margin:0;overflow-wrap:anywhere}`

var approvalPage = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>cay: approve a login</title>
<style>` + pageStyle + `</style>
{{if .Login}}<h1>{{if eq .Login.Status "approved"}}Approved{{else}}Denied{{end}}</h1>
<p>{{if eq .Login.Status "approved"}}The program has its token in a moment. You can close this page.{{else}}The program gets no token.{{end}}</p>
<dl>
<dt>Program</dt><dd>{{or .Login.Agent .Login.ClientID}}</dd>
<dt>Asked from</dt><dd>{{.Login.Address}}</dd>
{{if eq .Login.Status "approved"}}<dt>Speaks for</dt><dd>{{.Login.TeamID}}{{with .Login.ProjectID}}, {{.}} alone{{end}}</dd>{{end}}
</dl>
<p>If that is not what you have started, revoke it: <code>cay token list</code>, <code>cay token revoke</code>.</p>
{{else}}<h1>Approve a login</h1>
<p>A program asks for a token that is good for 30 days. Approve only what you have started yourself, and only if it shows this very code.</p>
{{with .Wrong}}<p class="wrong" role="alert">{{.}}</p>{{end}}
<form method="post" action="device" autocomplete="off">
<label>Code the program shows <input name="user_code" value="{{.UserCode}}" required maxlength="16" spellcheck="false"></label>
<label>Your cay token <input name="token" type="password" required autocomplete="off"></label>
<label>Project, by id, if it is to be for that one alone <input name="project_id" value="{{.ProjectID}}" maxlength="64" spellcheck="false"></label>
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button>
</form>
{{end}}</html>
`))

// pagePolicy lets the page have its style and send its form here, and nothing
// else.
var pagePolicy = func() string {
	style := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(style[:]) + "'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

type pageData struct {
	UserCode, ProjectID string
	Wrong               string // why nothing was decided
	Login               *account.DeviceLogin
}

func (h public) showPage(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	code := q.String("user_code")
	if err := q.Err(); err != nil {
		return err
	}
	return writePage(w, http.StatusOK, pageData{UserCode: printable(code, 16)})
}

func (h public) decidePage(w http.ResponseWriter, r *http.Request) error {
	form, err := api.ReadForm(w, r)
	if err != nil {
		return err
	}
	data := pageData{UserCode: printable(form.Get("user_code"), 16), ProjectID: printable(form.Get("project_id"), 64)}
	data.Login, err = h.decide(r, form.Get("token"), form.Get("decision"), data)
	status := http.StatusOK
	if err != nil {
		seen := api.Public(r.Context(), err)
		data.Wrong, status = seen.Message, api.Status(seen.Code)
		if seen.Hint != "" {
			data.Wrong += ": " + seen.Hint
		}
	}
	return writePage(w, status, data)
}

func (h public) decide(r *http.Request, secret, decision string, data pageData) (*account.DeviceLogin, error) {
	who, now := clientAddress(r), h.e.now()
	if h.e.wrongTokens.wait(who, now) > 0 {
		return nil, cay.Errorf(cay.QuotaExceeded, "too many tokens were wrong").WithHint("wait some minutes")
	}
	p, err := h.e.Authenticate(r.Context(), secret)
	if cay.CodeOf(err) == cay.Unauthenticated {
		h.e.wrongTokens.wrong(who, now)
	}
	if err != nil {
		return nil, err
	}
	ctx := api.WithPrincipal(r.Context(), p)
	switch decision {
	case "approve":
		return h.e.ApproveDeviceLogin(ctx, data.UserCode, account.ApproveParams{ProjectID: data.ProjectID})
	case "deny":
		return h.e.DenyDeviceLogin(ctx, data.UserCode)
	}
	return nil, cay.Errorf(cay.Invalid, "decision is %.20q; it must be approve or deny", decision)
}

func writePage(w http.ResponseWriter, status int, data pageData) error {
	var b bytes.Buffer
	if err := approvalPage.Execute(&b, data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	// Without a referrer a browser would not send the form's origin.
	h.Set("Referrer-Policy", "same-origin")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only when the client left
	return nil
}
