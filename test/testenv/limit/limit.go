// Package limit holds the one limit of every wait in the tests. It imports nothing of the project, so that every
// package of the test environment can use it.
package limit

import "time"

// Wait is how long tests and their fixtures wait for anything before they fail, on a machine of ordinary speed. It is
// far longer than anything takes on a busy one, so reaching it means that something does not happen.
const Wait = 3 * time.Minute
