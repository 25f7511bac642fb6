package guest

import (
	"context"
	"net/http"
)

// MaxObstacles bounds the names in Obstacles.
const MaxObstacles = 8

// Obstacles names the parts of a guest that cannot be saved with its memory.
type Obstacles struct {
	Obstacles []string `json:"obstacles,omitempty"`
}

// Obstacles names the parts of a guest that cannot be saved with its memory, for people:
// network namespaces in use, bridges, TUN devices, pairs of interfaces. The result is
// empty if everything can be saved. Guests started by a build before 2026-12 answer with
// an error.
func (c *Client) Obstacles(ctx context.Context) ([]string, error) {
	var o Obstacles
	if err := c.call(ctx, request{method: http.MethodGet, path: "/obstacles", repeat: true}, &o); err != nil {
		return nil, err
	}
	names := o.Obstacles[:min(len(o.Obstacles), MaxObstacles)]
	for i := range names {
		names[i] = printable(names[i])
	}
	return names, nil
}
