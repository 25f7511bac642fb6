package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cayhq/cay/sandbox"
)

// parallelLayers is how many layers of an image are downloaded at the same time.
const parallelLayers = 3

// layerDownloads downloads the layers of an image, in order, while earlier layers are
// being unpacked.
type layerDownloads struct {
	store  *Store
	client *http.Client
	repo   name.Repository
	report func(sandbox.ImageProgress)
	all    []*layerDownload
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type layerDownload struct {
	desc v1.Descriptor
	done chan struct{} // closed when file and err are set
	file *os.File
	err  error
}

func (s *Store) newLayerDownloads(client *http.Client, repo name.Repository, descs []v1.Descriptor, report func(sandbox.ImageProgress)) *layerDownloads {
	d := &layerDownloads{store: s, client: client, repo: repo, report: report}
	for _, desc := range descs {
		d.all = append(d.all, &layerDownload{desc: desc, done: make(chan struct{})})
	}
	return d
}

// layers returns the layers; opening a layer waits for its download.
func (d *layerDownloads) layers() []layer {
	var layers []layer
	for _, l := range d.all {
		layers = append(layers, layer{name: l.desc.Digest.String(), open: l.open})
	}
	return layers
}

func (d *layerDownloads) start(ctx context.Context) {
	ctx, d.cancel = context.WithCancel(ctx)
	queue := make(chan *layerDownload, len(d.all))
	for _, l := range d.all {
		queue <- l
	}
	close(queue)
	for range min(parallelLayers, len(d.all)) {
		d.wg.Go(func() {
			for l := range queue {
				l.file, l.err = d.download(ctx, l.desc)
				close(l.done)
			}
		})
	}
}

// stop ends downloads under way. Without drop, downloaded parts stay for the next
// attempt.
func (d *layerDownloads) stop(drop bool) {
	d.cancel()
	d.wg.Wait()
	for _, l := range d.all {
		switch {
		case l.file == nil && drop:
			d.store.dropPartial(blobDigest{l.desc.Digest.Algorithm, l.desc.Digest.Hex})
		case l.file == nil:
		case drop:
			d.store.dropBlob(l.file)
		default:
			l.file.Close()
		}
	}
}

func (d *layerDownloads) download(ctx context.Context, desc v1.Descriptor) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return d.store.fetch(ctx, download{
		url:    fmt.Sprintf("%s://%s/v2/%s/blobs/%s", d.repo.Scheme(), d.repo.RegistryStr(), d.repo.RepositoryStr(), desc.Digest),
		client: d.client,
		digest: blobDigest{desc.Digest.Algorithm, desc.Digest.Hex},
		size:   desc.Size,
		progress: func(current, total int64) {
			d.report(sandbox.ImageProgress{Phase: "download", Item: desc.Digest.String(), Current: current, Total: total})
		},
	})
}

// open waits for the download. The file stays the download's.
func (l *layerDownload) open(ctx context.Context) (io.ReadCloser, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
	}
	if l.err != nil {
		return nil, l.err
	}
	return io.NopCloser(io.NewSectionReader(l.file, 0, l.desc.Size)), nil
}
