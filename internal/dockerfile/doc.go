// Package dockerfile builds images of Dockerfiles. It reads them with BuildKit's own
// parser, translates each stage that is needed into a template, and has package
// template carry that out: RUN runs in sandboxes, and nowhere else.
//
// A stage starts from an image or from the layer of a stage before it. The state of a
// stage (environment, arguments, user, working directory, shell) is kept here, so
// that each step of a template carries all that it depends on, and its key says so.
//
// An instruction or a flag that cannot be carried out is refused by its name, with the
// line; an instruction that has no meaning in a sandbox is left out, with a note.
package dockerfile
