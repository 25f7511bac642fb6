package backup

// TargetAt returns t with a function that is called at the points where a crash is of
// interest.
func TargetAt(t Target, reached func(point string)) Target {
	t.reached = reached
	return t
}
