package join

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// maxTokenFile bounds what is read for a token.
const maxTokenFile = 16 << 10

// ReadToken returns the token that a command line names: text itself, or what is in file; "-" for either is in. The
// token is nil, and its text is "", if the command line names none.
func ReadToken(in io.Reader, text, file string) (string, *certs.Token, error) {
	if text != "" && file != "" {
		return "", nil, errors.New("--token and --token-file: want one of the two")
	}
	if text == "-" {
		file = "-"
	}
	text = strings.TrimSpace(text)
	if file != "" {
		var err error
		if text, err = readTokenFile(in, file); err != nil {
			return "", nil, err
		}
	}
	if text == "" {
		return "", nil, nil
	}
	token, err := certs.ParseToken(text)
	if err != nil {
		return "", nil, err
	}
	return text, token, nil
}

func readTokenFile(in io.Reader, file string) (string, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("token: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxTokenFile))
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("--token-file %s: there is no token in it", file)
	}
	return text, nil
}
