// Package crosstest holds the test that crosses all wire formats: each recorded
// answer of a provider is read by its own format, said by every other, and read
// again. What was meant must be what arrives; what a format has no words for is in
// one table, with the reason. The package has tests only.
package crosstest
