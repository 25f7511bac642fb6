// Package patch applies changes whose nil fields leave a value as it is.
package patch

// Set stores *value in *field, unless value is nil.
func Set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// SetMap stores value in *field, unless value is nil. An empty map replaces the old one.
func SetMap[M ~map[K]V, K comparable, V any](field *M, value M) {
	if value != nil {
		*field = value
	}
}

// SetSlice stores value in *field, unless value is nil. An empty slice replaces the old one.
func SetSlice[S ~[]E, E any](field *S, value S) {
	if value != nil {
		*field = value
	}
}
