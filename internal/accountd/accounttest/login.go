package accounttest

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
)

func testLoginApproved(t *testing.T, e *env) {
	red, team := e.tenant("red")
	web, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	for _, project := range []string{"", web.ID} {
		code, poll := e.Login()
		if _, pending := poll(); pending != "authorization_pending" {
			t.Fatalf("before it is approved: %q", pending)
		}
		// People type codes in various ways.
		typed := " " + strings.ToLower(strings.ReplaceAll(code, "-", ""))
		l, err := team.ApproveDeviceLogin(team.ctx, typed, account.ApproveParams{ProjectID: project})
		e.ok(err)
		if l.Status != account.LoginApproved || l.TeamID != red.ID || l.ProjectID != project || l.ClientID == "" || l.Address == "" || l.ExpiresAt.Sub(l.CreatedAt) != 10*time.Minute {
			t.Fatalf("approved %+v", l)
		}
		_, err = team.ApproveDeviceLogin(team.ctx, code, account.ApproveParams{})
		e.code(err, cay.NotFound)
		secret, failed := poll()
		if failed != "" {
			t.Fatalf("after it was approved: %q", failed)
		}
		c := e.as(secret)
		id, err := c.WhoAmI(c.ctx)
		e.ok(err)
		if id.Team.ID != red.ID || id.Token.ProjectID != project || id.Token.Admin || id.Token.ExpiresAt == nil || id.Token.ExpiresAt.Sub(e.Now()) != 30*24*time.Hour {
			t.Fatalf("speaks for %+v", id)
		}
		if _, failed := poll(); failed != "invalid_grant" {
			t.Fatalf("the second time: %q", failed)
		}
		_, err = team.DenyDeviceLogin(team.ctx, code)
		e.code(err, cay.NotFound)
		e.ok(team.DeleteToken(team.ctx, id.Token.ID))
		e.refused(secret)
	}

	// A login that an admin approves gets a token of a team, not an admin token, and
	// no token outlives the token that has approved it.
	soon := e.Now().Add(time.Hour)
	admin := e.as(e.token(e.admin(""), account.CreateTokenParams{Admin: true, ExpiresAt: &soon}).Secret)
	code, poll := e.Login()
	_, err = admin.ApproveDeviceLogin(admin.ctx, code, account.ApproveParams{})
	e.ok(err)
	secret, failed := poll()
	if failed != "" {
		t.Fatal(failed)
	}
	c := e.as(secret)
	id, err := c.WhoAmI(c.ctx)
	e.ok(err)
	if id.Token.Admin || id.Team.ID != account.DefaultTeam || id.Token.ExpiresAt.After(soon) {
		t.Fatalf("speaks for %+v", id)
	}
}

func testLoginDenied(t *testing.T, e *env) {
	_, team := e.tenant("red")
	for _, approved := range []bool{false, true} {
		code, poll := e.Login()
		if approved {
			_, err := team.ApproveDeviceLogin(team.ctx, code, account.ApproveParams{})
			e.ok(err)
		}
		l, err := team.DenyDeviceLogin(team.ctx, code)
		e.ok(err)
		if l.Status != account.LoginDenied {
			t.Fatalf("denied %+v", l)
		}
		if _, failed := poll(); failed != "access_denied" {
			t.Fatalf("after it was denied: %q", failed)
		}
		_, err = team.ApproveDeviceLogin(team.ctx, code, account.ApproveParams{})
		e.code(err, cay.NotFound)
	}
	code, poll := e.Login()
	e.Advance(10 * time.Minute)
	_, err := team.ApproveDeviceLogin(team.ctx, code, account.ApproveParams{})
	e.code(err, cay.NotFound)
	if _, failed := poll(); failed != "expired_token" {
		t.Fatalf("when it is too late: %q", failed)
	}
}

func testLoginTenancy(t *testing.T, e *env) {
	_, red := e.tenant("red")
	_, blue := e.tenant("blue")
	web, err := red.CreateProject(red.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	bound := e.as(e.token(red, account.CreateTokenParams{ProjectID: web.ID}).Secret)
	jwt := e.as(e.token(red, account.CreateTokenParams{ProjectID: web.ID, JWT: true}).Secret)
	code, poll := e.Login()
	for _, c := range []caller{bound, jwt} {
		_, err := c.ApproveDeviceLogin(c.ctx, code, account.ApproveParams{ProjectID: web.ID})
		e.code(err, cay.PermissionDenied)
		_, err = c.DenyDeviceLogin(c.ctx, code)
		e.code(err, cay.PermissionDenied)
	}
	_, err = blue.ApproveDeviceLogin(blue.ctx, code, account.ApproveParams{ProjectID: web.ID})
	e.code(err, cay.NotFound)
	_, err = red.ApproveDeviceLogin(red.ctx, code, account.ApproveParams{})
	e.ok(err)
	_, err = blue.DenyDeviceLogin(blue.ctx, code) // another team has approved it
	e.code(err, cay.NotFound)
	_, err = blue.ApproveDeviceLogin(blue.ctx, code, account.ApproveParams{})
	e.code(err, cay.NotFound)
	if _, failed := poll(); failed != "" {
		t.Fatal(failed)
	}
}

func testLoginGuesses(t *testing.T, e *env) {
	_, red := e.tenant("red")
	_, blue := e.tenant("blue")
	for _, bad := range []string{"", "x", "BCDF", "BCDF-GHJK-L", "AEIO-UAEI", "BCDF/GHJK", "ΒΒΒΒΒΒΒΒ", "BCDF-GHJ\x00"} {
		_, err := red.ApproveDeviceLogin(red.ctx, bad, account.ApproveParams{})
		if code := cay.CodeOf(err); code != cay.Invalid && code != cay.NotFound {
			t.Fatalf("%q: %v (%s), want invalid", bad, err, code)
		}
	}
	code, _ := e.Login()
	guess := "BBBB-BBBB"
	for range 20 {
		_, err := red.ApproveDeviceLogin(red.ctx, guess, account.ApproveParams{})
		e.code(err, cay.NotFound)
	}
	_, err := red.ApproveDeviceLogin(red.ctx, code, account.ApproveParams{})
	e.code(err, cay.QuotaExceeded)
	_, err = red.DenyDeviceLogin(red.ctx, code)
	e.code(err, cay.QuotaExceeded)
	_, err = blue.ApproveDeviceLogin(blue.ctx, code, account.ApproveParams{})
	e.ok(err)
	e.Advance(10 * time.Minute)
	code, _ = e.Login()
	_, err = red.ApproveDeviceLogin(red.ctx, code, account.ApproveParams{})
	e.ok(err)
}
