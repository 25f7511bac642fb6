// Package sse reads and writes streams of Server-Sent Events, as the WHATWG HTML
// standard describes them (section "Server-sent events").
//
// A Reader is asked for events, a Splitter is given bytes and hands out events;
// both keep no more than their limit and allocate nothing per event. What a
// server may do and theirs accept: lines that end with LF, CR or CRLF, a byte
// order mark, comments, data in several lines, events split across reads. Fields
// other than event and data are skipped, and so are events without data.
//
// The package does not know what is in an event.
package sse
