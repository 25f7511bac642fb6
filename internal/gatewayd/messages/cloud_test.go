package messages_test

import (
	"net/http"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
)

func TestAddress(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","stream":true,"x":[1.0]}`
	for _, test := range []struct {
		name, quirk, path string
		stream            bool
		betas             []string
		head              http.Header
		want, wantBody    string
	}{
		{name: "Anthropic", path: "/messages", want: "/messages", wantBody: body},
		{name: "VertexStream", quirk: messages.QuirkVertex, path: "/messages", stream: true, want: "/models/a%2Fb@1:0:streamRawPredict", wantBody: `{"stream":true,"x":[1.0],"anthropic_version":"vertex-2023-10-16"}`},
		{name: "Vertex", quirk: messages.QuirkVertex, path: "/messages", want: "/models/a%2Fb@1:0:rawPredict", wantBody: `{"stream":true,"x":[1.0],"anthropic_version":"vertex-2023-10-16"}`},
		{name: "VertexCount", quirk: messages.QuirkVertex, path: "/messages/count_tokens", want: "/models/count-tokens:rawPredict", wantBody: `{"model":"m","stream":true,"x":[1.0],"anthropic_version":"vertex-2023-10-16"}`},
		{name: "Bedrock", quirk: messages.QuirkBedrock, path: "/messages", want: "/model/a%2Fb@1%3A0/invoke", wantBody: `{"x":[1.0],"anthropic_version":"bedrock-2023-05-31"}`},
		{name: "BedrockStream", quirk: messages.QuirkBedrock, path: "/messages", stream: true, betas: []string{"a,b", " c "}, want: "/model/a%2Fb@1%3A0/invoke-with-response-stream", wantBody: `{"x":[1.0],"anthropic_version":"bedrock-2023-05-31","anthropic_beta":["a","b","c"]}`},
		{name: "BedrockOwnBetas", quirk: messages.QuirkBedrock, path: "/messages", betas: []string{"a"}, head: http.Header{"Anthropic-Beta": {"d"}}, want: "/model/a%2Fb@1%3A0/invoke", wantBody: `{"x":[1.0],"anthropic_version":"bedrock-2023-05-31","anthropic_beta":["d"]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			target := &hub.Target{Model: "a/b@1:0", Quirks: map[string]bool{test.quirk: true}}
			out := messages.Address(target, &hub.Outgoing{Path: test.path, Head: test.head, Body: []byte(body)}, test.betas, test.stream)
			if out.Path != test.want || string(out.Body) != test.wantBody {
				t.Errorf("%s %s, want %s %s", out.Path, out.Body, test.want, test.wantBody)
			}
		})
	}
}
