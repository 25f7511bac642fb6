package provider

import "time"

// SetNow sets the clock of a credential.
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
