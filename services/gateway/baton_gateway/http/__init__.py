"""HTTP below the endpoints: protocol, middleware, bodies, errors, disconnects, direct writes."""
