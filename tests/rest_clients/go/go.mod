module coterie/rest-client-test

go 1.17

require github.com/ricardo-ch/go-kafka-connect/v3 v3.0.0-20221117134721-e033f95963cb

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/hashicorp/errwrap v1.0.0 // indirect
	github.com/hashicorp/go-multierror v1.0.0 // indirect
	github.com/pkg/errors v0.8.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/stretchr/objx v0.1.1 // indirect
	github.com/stretchr/testify v1.2.2 // indirect
	golang.org/x/net v0.0.0-20200226121028-0de0cce0169b // indirect
	gopkg.in/resty.v1 v1.11.0 // indirect
)
