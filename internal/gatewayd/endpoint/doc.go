// Package endpoint remembers how the endpoints of models have fared: their health, the
// credentials that cool down, and the sessions that they have served. It sends nothing.
package endpoint
