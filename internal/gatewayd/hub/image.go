package hub

// ImageCall is one call of an image model.
type ImageCall struct {
	Prompt string
	N      int64 // how many images; 0 stands for 1
	// Size is width x height, as in 1024x1024, AspectRatio such as 16:9. Empty
	// leaves it to the model.
	Size        string
	AspectRatio string
	Seed        *int64
	// Files are images to change or to start from, Mask says where.
	Files []File
	Mask  *File
	User  string // the caller's end user
	// Options are for one provider each. The member gateway has been taken out.
	Options  Options
	Warnings []Warning // what the Surface could not carry into the call
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
	URL       string // where the provider keeps it for some time
	// RevisedPrompt is what the provider made of the prompt; empty if it did not say.
	RevisedPrompt string
}
