package acceptgzip

import (
	"net/http"
	"testing"
)

func TestBy(t *testing.T) {
	for value, want := range map[string]bool{
		"":                        false,
		"gzip":                    true,
		"br, GZIP;q=0.5":          true,
		"deflate, gzip; q = 0.05": true,
		"gzip;q=0":                false,
		"gzip;q=0.000, br":        false,
		"gzipped":                 false,
	} {
		if got := By(http.Header{"Accept-Encoding": {value}}); got != want {
			t.Errorf("Accept-Encoding %q: %v, want %v", value, got, want)
		}
	}
}
