// Package capture keeps bodies of requests and answers for those who want to see
// them: cut, redacted, sealed, and bounded in every way. It is off unless the
// settings ask for it.
//
// Nobody waits for it. What a call's bodies take is counted against a bound while
// the call lasts and until they are written, and where there is no room, or the
// queue is full, they are left out and the record says so. A goroutine redacts,
// seals and writes them, several at a time; it has transactions of its own, so that
// large bodies do not hold up the records. A crash loses those it has not written. So
// a record says only that bodies were to be kept; whether they are is the Store's to
// say (Has), which counts those that are about to be written, and waits for them if
// they are asked for.
//
// What is kept is what the client sent and got, as it was: no header of either
// side, so no credential; those that a request may have in its body the engine has
// taken out. The package knows no format but that of server-sent events.
package capture
