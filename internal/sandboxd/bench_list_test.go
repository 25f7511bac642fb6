package sandboxd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// BenchmarkList measures the lists that the pages of the inspector request. For its
// numbers see docs/inspector.md. 50 sandboxes run and the others have ended; all belong
// to one team.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkList(b, n) })
	}
}

func benchmarkList(b *testing.B, n int) {
	h, _ := startFake(b)
	ctx := defaultCaller(b)
	ended := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(b)
	if _, err := h.Stop(ctx, ended.ID); err != nil {
		b.Fatal(err)
	}
	copySandbox(b, h.Config.DB, ended.ID, n-50)
	for i := range 50 {
		tags := map[string]string{"app": "web"}
		if i == 7 {
			tags["rare"] = "yes"
		}
		checktest.Must(h.Create(ctx, sandbox.CreateParams{Tags: tags}))(b)
	}
	first, err := h.List(ctx, sandbox.ListParams{Limit: 200})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		p    sandbox.ListParams
		want int
	}{
		{"First", sandbox.ListParams{}, 50},
		{"All", sandbox.ListParams{ProjectID: "*", Limit: 200}, 200},
		{"Later", sandbox.ListParams{Cursor: first.Next}, 50},
		{"ByName", sandbox.ListParams{Order: sandbox.ByName}, 50},
		{"Running", sandbox.ListParams{Status: []sandbox.Status{sandbox.Running}}, 50},
		{"Paused", sandbox.ListParams{Status: []sandbox.Status{sandbox.Paused}}, 0},
		{"Resumable", sandbox.ListParams{Resumable: true}, 50},
		{"Prefix", sandbox.ListParams{NamePrefix: "copy-77"}, 50},
		{"Tag", sandbox.ListParams{Tags: map[string]string{"rare": "yes"}}, 1},
		{"TagOften", sandbox.ListParams{Tags: map[string]string{"app": "web"}}, 50},
		{"TagNone", sandbox.ListParams{Tags: map[string]string{"app": "none"}}, 0},
		{"Between", sandbox.ListParams{CreatedAfter: ended.CreatedAt.Add(-2 * time.Hour), CreatedBefore: ended.CreatedAt.Add(-time.Hour)}, 50},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				page, err := h.List(ctx, c.p)
				if err != nil {
					b.Fatal(err)
				}
				if len(page.Items) != c.want {
					b.Fatalf("%d sandboxes, want %d", len(page.Items), c.want)
				}
			}
		})
	}
}

// copySandbox adds copies of an ended sandbox, each created a second earlier than the
// previous one, half of them with a tag.
func copySandbox(b *testing.B, d *db.DB, id string, n int) {
	b.Helper()
	rows, err := d.Query(b.Context(), `SELECT name FROM pragma_table_info('sandboxes')`)
	if err != nil {
		b.Fatal(err)
	}
	var columns, values []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			b.Fatal(err)
		}
		value := name
		switch name {
		case "id":
			value = "printf('sbx_%026d', n)"
		case "name":
			value = "'copy-' || n"
		case "created_at":
			value = "created_at - 1000 * n"
		}
		columns, values = append(columns, name), append(values, value)
	}
	if err := rows.Close(); err != nil {
		b.Fatal(err)
	}
	err = d.Write(b.Context(), func(tx *db.Tx) error {
		const numbers = `WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) `
		_, err := tx.Exec(b.Context(), numbers+`INSERT INTO sandboxes (`+strings.Join(columns, ", ")+`) SELECT `+strings.Join(values, ", ")+
			` FROM numbers, sandboxes WHERE id = ?`, n, id)
		if err == nil {
			_, err = tx.Exec(b.Context(), numbers+`INSERT INTO sandbox_tags (sandbox_id, key, value) SELECT printf('sbx_%026d', n), 'app', 'web' FROM numbers WHERE n % 2 = 0`, n)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}
