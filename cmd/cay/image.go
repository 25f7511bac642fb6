package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const imageHelp = `Work with the images sandboxes start from. Those that an admin token brings are
the installation's, and all teams have them; those that a team brings are its own,
and count against its quota. Without a daemon they are this machine's.

A token of a project takes the right images:write to bring or remove images.`

func newImageCommand(a *app) *cobra.Command {
	return newNoun("image", "Work with images", imageHelp,
		newImagePull(a), newImagePush(a), newImageBuild(a), newImageImport(a), newImageExport(a), newImageList(a), newImageTag(a), newImageRemove(a), newImagePrune(a))
}

// withImages runs f on the images of the daemon, or of this machine.
func (a *app) withImages(ctx context.Context, f func(*sandbox.Images) error) error {
	c, stop, err := a.open(ctx)
	if err != nil {
		return err
	}
	err = f(c.Images())
	if serr := stop(); serr != nil {
		a.warn("cleaning up failed: %v", serr)
	}
	return err
}

// getImages gets each of the images, one after the other, with progress.
func (a *app) getImages(ctx context.Context, refs []string, quiet bool, get func(i *sandbox.Images, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)) error {
	images := []*sandbox.Image{}
	err := a.withImages(ctx, func(i *sandbox.Images) error {
		for _, ref := range refs {
			p := a.newProgress(quiet || a.json)
			img, err := get(i, ref, p.image)
			p.done()
			if err != nil {
				return err
			}
			images = append(images, img)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.show(images, func(w io.Writer) {
		for _, img := range images {
			fmt.Fprintln(w, img.Digest)
		}
	})
}

func newImagePull(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "pull REF...", Short: "Fetch images from a registry",
		Long:    "Fetch images from an OCI registry and print their digests. Credentials are those\nof docker or podman on the daemon's machine.",
		Example: "  cay image pull alpine:3.22",
		Args:    atLeast(1, "one or more references"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return a.getImages(ctx, args, quiet, func(i *sandbox.Images, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
			return i.Pull(ctx, ref, progress)
		})
	})
}

func newImageImport(a *app) *cobra.Command {
	var ref string
	var quiet bool
	c := &cobra.Command{
		Use: "import FILE", Short: "Make an image of an archive",
		Long: `Make an image of an OCI or Docker archive, or of a tarball of a root file system
as .tar, .tar.gz or .tar.zst, and print its digest. "-" reads standard input.

An archive of "cay image export" needs no --ref: its images get the names and the
digests that they had, also the default image and runtimes, which take an admin token.
An image whose content does not have its digest is refused.`,
		Example: "  docker save app | cay image import --ref app:latest -\n  cay image import debian.tar",
		Args:    exactly(1, "one file"),
	}
	c.Flags().StringVar(&ref, "ref", "", "name of the image; needed except for archives of \"cay image export\"")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		src := a.stdin
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return cay.Errorf(cay.Invalid, "cannot import: %w", err)
			}
			defer f.Close()
			src = f
		}
		var img *sandbox.Image
		var own []sandbox.Image // with the names of the archive
		err := a.withImages(ctx, func(i *sandbox.Images) (err error) {
			p := a.newProgress(quiet || a.json)
			var names []string
			img, err = i.Import(ctx, ref, src, func(st sandbox.ImageProgress) {
				if st.Phase == "imported" {
					names = append(names, st.Item)
					return
				}
				p.image(st)
			})
			p.done()
			for _, name := range names {
				img, gerr := i.Get(ctx, name)
				if gerr != nil {
					return errors.Join(err, gerr)
				}
				own = append(own, *img)
			}
			return err
		})
		if err != nil {
			return err
		}
		if ref == "" {
			return a.show(own, func(w io.Writer) {
				for _, img := range own {
					fmt.Fprintln(w, img.Digest)
				}
			})
		}
		return a.show(img, func(w io.Writer) { fmt.Fprintln(w, img.Digest) })
	})
}

func newImagePush(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "push REF", Short: "Send an image to a registry",
		Long:    "Send an image to the OCI registry that its name says, as an image with one layer, and print\nthe digest of its manifest there. Credentials are those of docker or podman on this machine,\nelse, with an admin token, on the daemon's machine.",
		Example: "  cay image tag app registry.example.com/team/app:1\n  cay image push registry.example.com/team/app:1",
		Args:    exactly(1, "one reference"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		auth, err := registryAuth(ctx, args[0])
		if err != nil {
			return err
		}
		result := struct {
			Ref    string `json:"ref"`
			Digest string `json:"digest"`
		}{Ref: args[0]}
		err = a.withImages(ctx, func(i *sandbox.Images) error {
			p := a.newProgress(quiet || a.json)
			defer p.done()
			_, err := i.Push(ctx, sandbox.ImagePushParams{Ref: args[0], Auth: auth}, func(st sandbox.ImageProgress) {
				if st.Phase == "pushed" {
					result.Digest = st.Item
					return
				}
				p.image(st)
			})
			return err
		})
		if err != nil {
			return err
		}
		return a.show(result, func(w io.Writer) { fmt.Fprintln(w, clean(result.Digest)) })
	})
}

func newImageExport(a *app) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "export REF...", Short: "Write images to an archive",
		Long: `Write images to an archive as "docker save" writes it: for "docker load" and "cay image
import". Each image has one layer there.

On another machine "cay image import" makes the same images of it, with the same names
and digests. So a fleet, or a machine without a network, need not build the default
image and the runtimes.`,
		Example: "  cay image export app:1 | docker load\n  cay image export debian node24 -o default.tar    # there: cay image import default.tar",
		Args:    atLeast(1, "one or more references"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVarP(&output, "output", "o", "", "the archive (default standard output)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if err := a.wantsFile(c, output); err != nil {
			return err
		}
		return a.withImages(ctx, func(i *sandbox.Images) error {
			r, err := i.Export(ctx, args)
			if err != nil {
				return err
			}
			defer r.Close() // it was only read
			return a.writeArchive(output, r)
		})
	})
}

// wantsFile refuses to write an archive to a terminal.
func (a *app) wantsFile(c *cobra.Command, output string) error {
	if output == "" && isTerminal(a.stdout) {
		return usage(c, "standard output is a terminal; name a file with --output")
	}
	return nil
}

// writeArchive writes an archive to a file, or to standard output if output is empty. A file
// that could not be written whole is removed.
func (a *app) writeArchive(output string, r io.Reader) (err error) {
	if output == "" {
		_, err := io.Copy(a.stdout, r)
		return err
	}
	f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return cay.Errorf(cay.Invalid, "cannot write the archive: %w", err)
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(output))
	}
	return nil
}

func newImageList(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List images",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print digests only")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		images := []sandbox.Image{}
		err := a.withImages(ctx, func(i *sandbox.Images) error {
			list, err := i.List(ctx)
			images = append(images, list...)
			return err
		})
		if err != nil {
			return err
		}
		return a.show(images, func(w io.Writer) {
			if quiet {
				for _, img := range images {
					fmt.Fprintln(w, img.Digest)
				}
				return
			}
			t := newTable("REF", "OWNER", "DIGEST", "SOURCE", "SIZE", "CREATED", "USED")
			for _, img := range images {
				for _, ref := range img.Refs {
					owner := "installation"
					if slices.Contains(img.TeamRefs, ref) {
						owner = "team"
					}
					t.row(ref, owner, short(img.Digest), img.Source, bytesText(img.SizeBytes), agoText(img.CreatedAt), agoText(img.UsedAt))
				}
			}
			t.print(w)
		})
	})
}

func newImageTag(a *app) *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "tag REF NAME", Short: "Give an image one more name",
		Long:    "Give an image one more name, and print its digest. The name is the team's, or, with an\nadmin token and an image of the installation, the installation's. A name that stands\nfor another image is taken from that.",
		Example: "  cay image tag app:latest app:stable",
		Args:    exactly(2, "an image and its new name"),
	}, func(ctx context.Context, args []string) error {
		var img *sandbox.Image
		err := a.withImages(ctx, func(i *sandbox.Images) (err error) {
			img, err = i.Tag(ctx, args[0], args[1])
			return err
		})
		if err != nil {
			return err
		}
		return a.show(img, func(w io.Writer) { fmt.Fprintln(w, img.Digest) })
	})
}

func newImageRemove(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "remove REF...", Aliases: []string{"rm"}, Short: "Forget images",
		Long: "Forget images of the team, or with an admin token those of the installation. Their\ncontent goes with \"cay image prune\" when no sandbox needs it, or when the team needs\nthe room.",
		Args: atLeast(1, "one or more references"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		removed := []string{}
		var errs []error
		err := a.withImages(ctx, func(i *sandbox.Images) error {
			for _, ref := range args {
				if err := i.Remove(ctx, ref); err != nil {
					errs = append(errs, err)
					continue
				}
				removed = append(removed, ref)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = a.show(removed, func(w io.Writer) {
			if !quiet {
				for _, ref := range removed {
					fmt.Fprintln(w, clean(ref))
				}
			}
		})
		return a.reportAll(append(errs, err)...)
	})
}

func newImagePrune(a *app) *cobra.Command {
	var p sandbox.ImageGCParams
	c := &cobra.Command{
		Use: "prune", Short: "Free what no image and no sandbox needs",
		Long:    "Delete the content of images that have no name any more and that no sandbox\nneeds. It takes an admin token.",
		Example: "  cay image prune --dry-run",
		Args:    none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVar(&p.DryRun, "dry-run", false, "only show what would be deleted")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		var gc *sandbox.ImageGC
		err := a.withImages(ctx, func(i *sandbox.Images) (err error) {
			gc, err = i.GC(ctx, p)
			return err
		})
		if err != nil {
			return err
		}
		return a.show(gc, func(w io.Writer) {
			if p.DryRun && len(gc.Images) > 0 {
				t := newTable("DIGEST", "SOURCE", "SIZE", "CREATED", "USED")
				for _, img := range gc.Images {
					t.row(short(img.Digest), img.Source, bytesText(img.SizeBytes), agoText(img.CreatedAt), agoText(img.UsedAt))
				}
				t.print(w)
			}
			fmt.Fprintf(w, "%d images, %s\n", gc.Removed, bytesText(gc.FreedBytes))
		})
	})
}
