// Package chat runs the official clients of chat pages, unmodified, against agents of
// cay: tests compare package agent/chat's conversion of a page's messages with the AI
// SDK's; they let the SDK's transports read answers that are cut off and given again;
// and they use a page built with useChat in a browser, while the program that serves
// the page is killed.
//
// The clients are pinned by package.json and its lock file; "make conformance-chat" in
// the root installs and runs them.
package chat
