// Package charge says what calls cost: at most, before an attempt, so that the ledger can
// reserve it; and in the end, by what providers have counted. It calls no provider.
package charge
