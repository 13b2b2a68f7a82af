package auth

import "net/http"

// Verb is what the authorizer is asked about a request with an HTTP method, as the kubelet asks.
func Verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}
