package workflow_test

import (
	"testing"

	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
