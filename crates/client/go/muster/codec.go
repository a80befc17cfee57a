package muster

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

// codec stands in for the one of gRPC. That of older releases, such as Debian's, serializes messages with a library that
// does not know the ones that the generator makes today.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message interface{}) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (codec) Unmarshal(data []byte, message interface{}) error {
	return proto.Unmarshal(data, message.(proto.Message))
}

func init() { encoding.RegisterCodec(codec{}) }
