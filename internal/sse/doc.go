// Package sse reads and writes streams of Server-Sent Events, as the WHATWG HTML
// standard describes them (section "Server-sent events").
//
// A Reader pulls events from an io.Reader, a Splitter is given bytes and calls back with
// events; both keep no more than their limit and allocate nothing per event. They accept
// everything that the standard allows servers to send: lines that end with LF, CR or
// CRLF, a byte order mark, comments, data in several lines, events split across reads.
// Fields other than event and data are skipped, and so are events without data.
//
// The package does not interpret the data of events.
package sse
