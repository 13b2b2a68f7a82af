package resource

import "time"

// tokenRefresh is the part of its life after which the token of a service account is to be renewed; and none is kept
// longer than tokenRefreshAge.
const (
	tokenRefresh    = 0.8
	tokenRefreshAge = 24 * time.Hour
)

// TokenAge returns how old a token of a service account may become before it is to be renewed. life is what was asked
// for.
func TokenAge(life time.Duration) time.Duration {
	return min(time.Duration(float64(life)*tokenRefresh), tokenRefreshAge)
}
