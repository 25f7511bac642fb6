package claude

import "testing"

func TestOf(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]Model{
		"":                           {},
		"gpt-5":                      {},
		"claude-instant-v1":          {},
		"claude-3-opus-20240229":     {Known: true},
		"claude-3-5-sonnet-20241022": {Known: true},
		"us.anthropic.claude-3-7-sonnet-20250219-v1:0":         {Known: true, Thinks: true},
		"claude-sonnet-4@20250514":                             {Known: true, Thinks: true},
		"claude-opus-4-20250514":                               {Known: true, Thinks: true},
		"claude-opus-4-1-20250805":                             {Known: true, Thinks: true, OneSampling: true},
		"global.anthropic.claude-sonnet-4-5-20250929-v1:0":     {Known: true, Thinks: true, OneSampling: true, Formats: true},
		"anthropic/claude-opus-4.6":                            {Known: true, Thinks: true, OneSampling: true, Formats: true, Adaptive: true},
		"global.anthropic.claude-opus-4-6-v1":                  {Known: true, Thinks: true, OneSampling: true, Formats: true, Adaptive: true},
		"claude-opus-4-8":                                      {Known: true, Thinks: true, OneSampling: true, Formats: true, Adaptive: true, Free: true},
		"claude-fable-5":                                       {Known: true, Thinks: true, OneSampling: true, Formats: true, Adaptive: true, Free: true, AlwaysThinks: true},
		"arn:aws:bedrock:eu:1:profile/anthropic.claude-opus-5": {Known: true, Thinks: true, OneSampling: true, Formats: true, Adaptive: true, Free: true, AlwaysThinks: true},
	} {
		if got := Of(model); got != want {
			t.Errorf("Of(%q) = %+v, want %+v", model, got, want)
		}
	}
}
