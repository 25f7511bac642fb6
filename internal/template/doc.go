// Package template builds images and snapshots for sandboxes to start from: it
// reads a cay.yaml and carries it out in a sandbox. Package template is a
// client: it needs only [Sandboxes] and [Images], which *sandbox.Client and
// *sandbox.Images implement. All programs and archives of a template are run and
// unpacked in a sandbox, and nowhere else.
//
// A [Template] is a base, steps that run programs and copy files, and the kind
// of the result. [Builder.Build] carries out the steps in one sandbox and saves
// layers on the way: a layer is a snapshot named after the base and all steps
// before it.
//
//	key(0) = hash(the base by digest, user, working directory, disk, network policy)
//	key(n) = hash(key(n-1), step n as it is carried out, the files it copies)
//
// A build starts from the last layer whose key is known. Layers are whole copies
// of the written files, so only slow steps, and the last step, get a layer.
// Layers expire by themselves.
//
// The result is made from the last layer, not from the sandbox that ran the
// steps: an image, a snapshot, or the memory of a sandbox in which only the
// template's own program was started and is ready.
package template
