// Package guest is the protocol between the daemon and cay-guest, the program that is PID
// 1 in every sandbox, and the daemon's side of it. Package agent is the guest's side;
// package initd turns the agent into an init.
//
// # Transport
//
// HTTP/1.1 on TCP connections that the daemon dials over the sandbox's link to Port and
// keeps alive. Each request carries the sandbox's token; the guest knows only the token's
// SHA-256, and accepts connections from its gateway alone. So no program in the sandbox
// can use the agent, and the hash that a program could read is worth nothing elsewhere.
//
// Unary answers are JSON. Files and archives are raw bodies. A command's output and a
// watch are streams of frames (see Frame). An error is a status of 400 or more with a
// JSON ErrorBody; in a stream it is a frame, at the end of a raw body of unknown length a
// trailer. Paths travel percent-encoded in the query and base64-encoded in answers,
// because names are bytes to Linux.
//
// # Trust
//
// Root in the guest can replace the agent. So Client believes nothing: it bounds every
// header, body and frame, checks cursors, names and enumerations, takes only error codes
// from a list, and escapes text that is shown to people.
//
// # Certificates
//
// Programs of a guest are made to trust authorities its image does not know, by files
// that init writes before anything runs (Config.Certificates), or that the agent writes
// later (Client.Trust). Health reports the trusted authorities.
//
// # Copies
//
// A machine starts from an image, from saved files, or from all of another machine's
// memory, and it may be started before it belongs to a sandbox. So its identity is not
// fixed at its start: Client.Identify gives a machine a new identity, with a token of its
// own, before the copy is given to a user. Programs see the identity in IdentityFile.
//
// Files are saved when nothing changes them: Client.Quiesce ends all processes. When
// memory is saved, processes go on, in every copy. The clock of a copy has jumped, and
// its connections are gone; commands have their ids, their output its cursors, and
// timeouts continue with the remaining time.
//
// # Broken connections
//
// The link is replaced when a new daemon adopts a sandbox, so a connection can end at any
// time while commands live on. Commands have ids chosen by the client, so that repeating
// a start after an unanswered request finds the command of the first request. Output is
// addressed by cursors that count the bytes of stdout and stderr together; a stream that
// broke continues from its cursor. Standard input carries a session and an offset, so no
// byte is typed twice.
package guest
