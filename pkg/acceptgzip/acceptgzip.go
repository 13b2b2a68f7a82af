// Package acceptgzip reads whether a client of HTTP takes answers that are compressed with gzip.
package acceptgzip

import (
	"net/http"
	"strings"
)

// By reports whether the client that sent a header takes gzip. A weight of 0 refuses it.
func By(header http.Header) bool {
	for _, value := range header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(value, ",") {
			name, params, _ := strings.Cut(part, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			q, ok := strings.CutPrefix(strings.ToLower(strings.ReplaceAll(params, " ", "")), "q=")
			return !ok || strings.Trim(q, "0.") != ""
		}
	}
	return false
}
