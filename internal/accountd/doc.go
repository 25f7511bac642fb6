// Package accountd is the account slice of the daemon: teams, projects, tokens and
// quotas, and the authentication of requests.
//
// # Tokens
//
// A secret is "cay_" and 32 random bytes in base64url. Only its SHA-256 is stored,
// and found by equality: the secrets are random, so neither a slow hash nor a
// constant-time comparison would add anything. The result of a lookup is kept in
// memory for at most 30 s; revoking drops it at once in this process, and other
// processes on the same database follow within those 30 s.
//
// Some clients only take a JSON Web Token. The daemon can issue a token as a JWT,
// for one project of the token's team. The JWT is valid while the token is, and as
// long as the JWT's own expiry allows; the token's row, not the JWT, decides about
// team and rights. See package oidc for the keys.
//
// Errors do not say whether a secret is unknown, expired or revoked, and no secret
// is ever logged or put into an error.
//
// # Logins of devices
//
// A program without a token asks for one, and shows its user a code (RFC 8628):
//
//	none --- asks ---> pending --- a person approves ---> approved --- it polls ---> a token
//	                      |                                  |
//	                      +---------- denies ----------------+----> denied
//
// The token is an ordinary one for 30 days, and comes with a refresh token that
// replaces both. The database has the logins, with codes as hashes.
//
// # Logins in browsers
//
// The web inspector is logged in to with a token, or with the code of a link that
// a token has made. The browser then holds a session, in two halves: a cookie,
// which the browser also sends to every other server on this host, since cookies
// are not bound to ports; and a key, which the page keeps to itself and sends as a
// header. A session acts for its token, and ends with the token, after 7 days, or
// after 12 hours without use.
//
// # Rights
//
//	token of a project   sees its own team, project and identity
//	token of a team      also makes and deletes the team's projects and tokens
//	admin token          also makes teams, sets quotas, and reaches every team
//
// Objects that a token does not reach are not_found, never permission_denied, so
// that ids of other tenants cannot be probed.
//
// # The first admin token
//
// Start makes sure that the admin token file holds the secret of a live token.
// If it is missing or does not match, Start makes a new token, revokes the one
// written there before, and replaces the file atomically; a crash in between
// leaves a file that does not match, which the next Start repairs. So deleting
// the file and restarting rotates the token.
package accountd
