package muster

import (
	"testing"
	"time"

	"github.com/golang/protobuf/ptypes/any"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyWhatMayEndDifferentlyIsRepeated(t *testing.T) {
	const info, retry = "google.rpc.ErrorInfo", "google.rpc.RetryInfo"
	for _, found := range []struct {
		code    codes.Code
		details []string
		passes  bool
	}{
		{codes.Unavailable, []string{info, retry}, true},
		{codes.Unavailable, nil, true},
		{codes.ResourceExhausted, []string{info, retry}, true},
		{codes.ResourceExhausted, []string{info}, false},
		{codes.ResourceExhausted, nil, false},
		{codes.Internal, nil, true},
		{codes.Internal, []string{info}, false},
		{codes.InvalidArgument, []string{info}, false},
	} {
		said := &statuspb.Status{Code: int32(found.code)}
		for _, name := range found.details {
			said.Details = append(said.Details, &any.Any{TypeUrl: "type.googleapis.com/" + name})
		}
		if passes(status.ErrorProto(said), time.Minute) != found.passes {
			t.Errorf("%v with %v: passes is not %v", found.code, found.details, found.passes)
		}
	}
	absent := status.Error(codes.NotFound, "no such job")
	if !passes(absent, time.Second) || passes(absent, time.Minute) {
		t.Error("a job that a replica does not know is asked for while the replica may be behind, and no longer")
	}
}
