package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/klog/v2"
)

// access is what the authorizer said.
type access struct {
	allowed bool
	reason  string
}

var (
	errNoCloud = errors.New("this device has not joined a cloud that could be asked")
	errTooMany = errors.New("too many requests wait for the cloud; try again in a moment")
)

// askShared asks a question. Where known is true, all who ask it at the same time share one, with its place in the
// rate limit: many requests with one token must not use up what others have for theirs.
func askShared[A any](
	ctx context.Context, asked *singleflight.Group, k key, known bool, question func(context.Context) (*A, error),
) (*A, error) {
	if !known {
		return question(ctx)
	}
	// The others still want the answer if the first one goes away.
	answer, err, _ := asked.Do(string(k[:]), func() (any, error) { return question(context.WithoutCancel(ctx)) })
	a, _ := answer.(*A)
	return a, err
}

// ask puts a question to the cloud.
func ask[A any](ctx context.Context, question func(context.Context) (A, error)) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	return question(ctx)
}

// keptUser returns the user of a token, as far as a review that is still valid tells: nil and no error if none does.
func (a *Authority) keptUser(k key) (*User, error) {
	if user, age, known := a.tokens.get(k); known && age < a.opts.TokenAge {
		return user, nil
	}
	if _, age, refused := a.strangers.get(k); refused && age < strangerAge {
		return nil, errStranger
	}
	return nil, nil
}

// byToken is who a token is, as the cluster says. from is the source that shows it.
func (a *Authority) byToken(ctx context.Context, token string, from netip.Prefix) (*User, error) {
	if len(token) > maxToken {
		return nil, refuse(http.StatusUnauthorized, "Unauthorized: the token has more than %d bytes", maxToken)
	}
	k := key(sha256.Sum256([]byte(token)))
	if user, err := a.keptUser(k); user != nil || err != nil {
		return user, err
	}
	_, _, known := a.tokens.get(k)
	answer, err := askShared(ctx, &a.asked, k, known, func(ctx context.Context) (*authenticationv1.TokenReview, error) {
		if err := a.awaitToken(ctx, k, from); err != nil {
			return nil, err
		}
		if user, err := a.keptUser(k); user != nil || err != nil {
			return nil, nil
		}
		return ask(ctx, func(ctx context.Context) (*authenticationv1.TokenReview, error) {
			return a.opts.Cloud.ReviewToken(ctx, &authenticationv1.TokenReview{
				Spec: authenticationv1.TokenReviewSpec{Token: token},
			})
		})
	})
	if answer == nil && err == nil { // another request that waited has asked
		if user, err := a.keptUser(k); user != nil || err != nil {
			return user, err
		}
		err = errTooMany
	}
	user, age, known := a.tokens.get(k)
	switch {
	case err != nil && known && (grace(err, age, a.opts.TokenAge) || busy(err, age, a.opts.TokenAge)):
		klog.V(2).InfoS("Token accepted by a cached review", "user", user.Name, "age", age.Round(time.Second),
			"err", err)
		return user, nil
	case err != nil:
		return nil, refuse(http.StatusServiceUnavailable, "the cluster cannot be asked whose this token is: %v (a "+
			"client certificate of the cluster is known without asking)", err)
	case !answer.Status.Authenticated || answer.Status.User.Username == "":
		a.tokens.drop(k)
		a.strangers.put(k, struct{}{})
		return nil, errStranger
	}
	is := &answer.Status.User
	user = &User{
		Name:   is.Username,
		UID:    is.UID,
		Groups: slices.Clone(is.Groups[:min(len(is.Groups), maxGroups)]),
		Extra:  is.Extra,
	}
	if user.size() > maxUser {
		return nil, refuse(http.StatusUnauthorized,
			"Unauthorized: the name, groups and extra of this token's user have more than %d KiB; "+
				"use a client certificate of the cluster, or a service account", maxUser>>10)
	}
	a.tokens.put(k, user)
	return user, nil
}

var errStranger = refuse(http.StatusUnauthorized,
	"Unauthorized: the cluster does not know this token, or it has expired")

// grace reports whether a yes of an age is still good though its time is over, since there was no answer.
func grace(err error, age, lives time.Duration) bool {
	return !errors.Is(err, errTooMany) && age < max(offlineAge, lives)
}

// busy reports whether a token that the cluster knew is good for a little longer, since too many questions wait. It may
// do only what the authorizer allows meanwhile.
func busy(err error, age, lives time.Duration) bool {
	return errors.Is(err, errTooMany) && age < lives+busyAge
}

// authorizeAny asks the authorizer about one subresource after another; one yes is enough.
func (a *Authority) authorizeAny(ctx context.Context, user *User, verb string, subresources []string) error {
	var unanswered error
	var reasons []string
	for _, sub := range subresources {
		got, err := a.mayUse(ctx, user, verb, sub)
		switch {
		case err != nil:
			unanswered = err
		case got.allowed:
			return nil
		case got.reason != "":
			reasons = append(reasons, got.reason)
		}
	}
	if unanswered != nil {
		return refuse(http.StatusServiceUnavailable,
			"the cluster cannot be asked whether user %q may %s nodes/%s of %s: %v", user.Name, verb, subresources[0],
			a.opts.Node, unanswered)
	}
	text := ""
	if len(reasons) > 0 {
		text = ": " + strings.Join(reasons, "; ")
	}
	return refuse(http.StatusForbidden, "Forbidden (user=%s, verb=%s, resource=nodes, subresource=%s)%s", user.Name,
		verb, strings.Join(subresources, " or "), text)
}

func (a *Authority) mayUse(ctx context.Context, user *User, verb, subresource string) (access, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb:        verb,
			Version:     "v1",
			Resource:    "nodes",
			Subresource: subresource,
			Name:        a.opts.Node,
		},
		User:   user.Name,
		UID:    user.UID,
		Groups: user.Groups,
		Extra:  extra(user),
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return access{}, err
	}
	k := key(sha256.Sum256(text))
	if got, valid := a.keptAccess(k); valid {
		return got, nil
	}
	known, _, _ := a.access.get(k)
	answer, err := askShared(ctx, &a.asked, k, known.allowed,
		func(ctx context.Context) (*authorizationv1.SubjectAccessReview, error) {
			if err := a.awaitAccess(ctx, k); err != nil {
				return nil, err
			}
			if _, valid := a.keptAccess(k); valid {
				return nil, nil
			}
			return ask(ctx, func(ctx context.Context) (*authorizationv1.SubjectAccessReview, error) {
				return a.opts.Cloud.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{Spec: spec})
			})
		})
	if answer == nil && err == nil { // another request that waited has asked
		if got, valid := a.keptAccess(k); valid {
			return got, nil
		}
		err = errTooMany
	}
	if err != nil {
		if got, age, known := a.access.get(k); known && got.allowed && grace(err, age, a.opts.AllowedAge) {
			klog.V(2).InfoS("Access allowed by a cached review", "user", user.Name, "verb", verb,
				"subresource", subresource, "age", age.Round(time.Second), "err", err)
			return got, nil
		}
		return access{}, err
	}
	got := access{allowed: answer.Status.Allowed && !answer.Status.Denied, reason: clip(answer.Status.Reason)}
	a.access.put(k, got)
	return got, nil
}

// keptAccess returns the answer of a review, and whether it is still valid.
func (a *Authority) keptAccess(k key) (got access, valid bool) {
	got, age, known := a.access.get(k)
	if got.allowed {
		return got, known && age < a.opts.AllowedAge
	}
	return got, known && age < a.opts.DeniedAge
}

// size is about what keeping a user takes, in bytes.
func (u *User) size() int {
	const each = 16 // of a list or a map
	size := len(u.Name) + len(u.UID)
	for _, group := range u.Groups {
		size += each + len(group)
	}
	for name, values := range u.Extra {
		size += 4*each + len(name)
		for _, value := range values {
			size += each + len(value)
		}
	}
	return size
}

// clip is the beginning of a reason, in memory of its own.
func clip(reason string) string {
	return strings.Clone(strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""))
}

func extra(user *User) map[string]authorizationv1.ExtraValue {
	if len(user.Extra) == 0 {
		return nil
	}
	out := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		out[name] = authorizationv1.ExtraValue(values)
	}
	return out
}
