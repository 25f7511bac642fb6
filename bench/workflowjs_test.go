package bench

import (
	"math"
	"testing"
)

func TestStepsOf(t *testing.T) {
	t.Parallel()
	// Ten steps of 10 ms, then one of 40 ms, each with 3 ms of CPU.
	var at, cpu []float64
	for i := range 11 {
		at, cpu = append(at, 5+float64(10*i)), append(cpu, float64(3*i))
	}
	at[10] += 30
	got, err := stepsOf(at, cpu)
	if err != nil || math.Abs(got.step-13) > 1e-9 || math.Abs(got.cpu-3) > 1e-9 || math.Abs(got.growth-2.5) > 1e-9 {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, marks := range map[string][2][]float64{"too few": {at[:4], cpu[:4]}, "unequal": {at, cpu[:10]}, "none": {}} {
		if got, err := stepsOf(marks[0], marks[1]); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var values []float64
	for i := range 100 {
		values = append(values, float64(i+1))
	}
	for p, want := range map[float64]float64{50: 50, 75: 75, 99: 99, 0: 1, 100: 100} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
	if got := percentile([]float64{7}, 75); got != 7 {
		t.Errorf("of one value it is %v", got)
	}
}
