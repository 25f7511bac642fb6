// Package template builds what sandboxes start from: it reads a cay.yaml and
// carries it out in a sandbox. It is a client: all it needs is [Sandboxes] and
// [Images], which *sandbox.Client and *sandbox.Images are, and nothing of a
// template runs, or is unpacked, anywhere but in a sandbox.
//
// A [Template] is a base, steps that run programs and copy files, and what is to
// come of them. [Builder.Build] goes through the steps in one sandbox and saves
// layers on the way: snapshots named after all that led to them.
//
//	key(0) = hash(the base by digest, user, working directory, disk, network policy)
//	key(n) = hash(key(n-1), step n as it is carried out, the files it copies)
//
// So a build begins where the longest known chain of keys ends. Layers are whole
// copies of what was written so far, which is why only steps that took a while
// get one, and the last. They expire by themselves.
//
// The result is made of the last layer, not of the sandbox the steps ran in: an
// image, a snapshot, or the memory of a sandbox in which nothing but the
// template's own program was started and is ready.
package template
