// Package chat runs the official clients of chat pages, unmodified, against agents of
// cay: what package agent/chat makes of a page's messages is compared with what the AI
// SDK makes of them; its transports read answers that are cut off and given again; and
// a page built with useChat is used in a browser, while the program that serves it is
// killed.
//
// The clients are pinned by package.json and its lock file; "make conformance-chat" in
// the root installs and runs them.
package chat
