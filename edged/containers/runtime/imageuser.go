package runtime

import (
	"context"
	"fmt"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageUser is who an image runs as: a name, or a number.
type imageUser struct {
	uid  int64
	name string
}

// imageUsers remembers the users of images. A reference by digest or id always means the same image.
type imageUsers struct {
	mu    sync.Mutex
	known map[string]imageUser
}

// imageUsersMax bounds what is remembered; a device that had more images starts over.
const imageUsersMax = 256

func (u *imageUsers) get(ref string) (imageUser, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	user, ok := u.known[ref]
	return user, ok
}

func (u *imageUsers) remember(ref string, user imageUser) {
	if !strings.Contains(ref, "sha256:") {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= imageUsersMax {
		u.known = map[string]imageUser{}
	}
	u.known[ref] = user
}

// userOf returns who an image runs as; one that does not say runs as root.
func (r *Runtime) userOf(ctx context.Context, imageRef string) (imageUser, error) {
	if user, ok := r.users.get(imageRef); ok {
		return user, nil
	}
	resp, err := r.client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: imageRef},
	})
	if err != nil {
		return imageUser{}, fmt.Errorf("user of image %s: %w", imageRef, err)
	}
	if resp.GetImage() == nil {
		return imageUser{}, fmt.Errorf("user of image %s: the runtime no longer has it", imageRef)
	}
	user := imageUser{uid: resp.GetImage().GetUid().GetValue(), name: resp.GetImage().GetUsername()}
	r.users.remember(imageRef, user)
	return user, nil
}
