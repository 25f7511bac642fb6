package provider

import "time"

// SetNow gives a credential another clock.
func SetNow(c Credential, now func() time.Time) {
	switch c := c.(type) {
	case *awsKeys:
		c.now = now
	case *googleAccount:
		c.token.now = now
	}
}

// ModelNames reads a list of models.
var ModelNames = modelNames
