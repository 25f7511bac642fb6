// Package imaged is the slice of images: what sandboxes start from.
//
// The images of the installation are those that cay makes itself, and those that
// an admin token has brought; all teams have them. Those that a team has brought
// are its own: no other team sees them, and they count against the team's quota of
// disk and of downloads. A team's name for an image goes before the installation's.
// Content is kept once, whoever has it.
//
// Bringing images takes a right ([account.ImagesWrite]): pulls make the daemon send
// requests, and fill its disk. Package image keeps the files, and knows owners but
// no rights.
package imaged
