// Package imaged is the slice of images, from which sandboxes start.
//
// The installation's images are built by cay or were added with an admin token; all
// teams have them. Images that a team has added belong to the team: no other team sees
// them, and they count against the team's quotas of disk and of downloads. A team's name
// for an image takes precedence over the installation's name. Content is stored once,
// however many teams have it.
//
// Adding images (by a pull, an import or from a snapshot) requires a right
// ([account.ImagesWrite]), because pulls make the daemon send requests and fill its disk.
// Package image stores the files, and knows owners but no rights.
package imaged
