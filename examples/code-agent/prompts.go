package main

import (
	"fmt"
	"strings"
)

const (
	coderInstructions = "You write Python 3.13 modules. Answer with one complete module in one code block and nothing else. " +
		"Use the standard library only, unless packages are named. No input, no output, no code that runs when the module is imported."
	testerInstructions = "You write tests with Python's unittest for a module named solution, from what it is meant to do, not from how it does it. " +
		"Answer with one complete test module in one code block and nothing else."
)

func writeProgram(want string) string {
	return "Write the module solution.py that does this:\n\n" + want
}

func writeTests(want, code string) string {
	return fmt.Sprintf("Write tests for solution.py, which is to do this:\n\n%s\n\nIts names are those of this draft, which may be wrong in all else:\n\n```python\n%s\n```", want, code)
}

func mendProgram(want string, r *Report) string {
	return fmt.Sprintf("The tests of solution.py fail. It is to do this:\n\n%s\n\nThis is solution.py:\n\n```python\n%s\n```\n\nThese are the tests:\n\n```python\n%s\n```\n\n"+
		"They print:\n\n```\n%s\n```\n\nAnswer with the whole mended module.", want, r.Code, r.Tests, r.Output)
}

// program returns the program in a model's answer: the content of the longest
// fenced block, or the whole answer if it has no fence. A fence that is not closed
// ends with the answer.
func program(answer string) (string, error) {
	best, inside, block := "", false, ""
	found := false
	var fence string
	for line := range strings.Lines(answer) {
		trimmed := strings.TrimSpace(line)
		switch {
		case !inside && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
			inside, found, block = true, true, ""
			fence = strings.Repeat(trimmed[:1], len(trimmed)-len(strings.TrimLeft(trimmed, trimmed[:1])))
		case inside && strings.HasPrefix(trimmed, fence) && strings.Trim(trimmed, fence[:1]) == "":
			inside = false
			if len(block) > len(best) {
				best = block
			}
		case inside:
			block += line
		}
	}
	if inside && len(block) > len(best) {
		best = block
	}
	if !found {
		best = answer
	}
	best = strings.TrimSpace(best)
	if best == "" {
		return "", fmt.Errorf("there is no program in the model's answer %q", tail(answer, 200))
	}
	if len(best) > maxProgram {
		return "", fmt.Errorf("the model's program has %d bytes, and at most %d are taken", len(best), maxProgram)
	}
	return best + "\n", nil
}
