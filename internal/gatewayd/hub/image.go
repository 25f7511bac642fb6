package hub

// ImageCall is one call to an image model.
type ImageCall struct {
	Prompt string
	N      int64 // how many images; 0 stands for 1
	// Size is width x height, as in 1024x1024; AspectRatio is for example 16:9. Empty
	// leaves the choice to the model.
	Size        string
	AspectRatio string
	Seed        *int64
	// Files are images to change or to start from, Mask marks the area to change.
	Files []File
	Mask  *File
	User  string // the caller's end user
	// Options are for one provider each. The member gateway has been removed.
	Options  Options
	Warnings []Warning // content that the Surface could not put into the call
}

// ImageResult is the answer to an ImageCall.
type ImageResult struct {
	Images   []Image
	Usage    *Usage // nil if the provider gave none
	Warnings []Warning
	Response Response
	Options  Options
}

// Image is one image of an ImageResult. Exactly one of Data and URL is set.
type Image struct {
	MediaType string // empty if the provider did not say
	Data      []byte
	URL       string // the provider keeps it for some time
	// RevisedPrompt is the provider's version of the prompt; empty if unknown.
	RevisedPrompt string
}
