-- Feeds wrk with purchases that were made ready beforehand: each of its threads walks through buyers of its own, so
-- that no buyer asks twice before all of them have asked.
--
-- Arguments: file of "TOKEN ADDRESS" lines, number of threads, sale.
-- Prints one line at the end: feed REQUESTS MICROSECONDS REFUSED BROKEN

local places = 0

function setup(thread)
  thread:set('place', places)
  places = places + 1
end

local requests, at = {}, 0

function init(args)
  local file, threads, sale = args[1], tonumber(args[2]), args[3]
  local body = '{"quantity":1}'
  local line = 0
  for text in io.lines(file) do
    if line % threads == place then
      local token, address = string.match(text, '^(%S+) (%S+)$')
      requests[#requests + 1] = 'POST /api/v1/sales/' .. sale .. '/purchases HTTP/1.1\r\nhost: localhost\r\n'
        .. 'authorization: Bearer ' .. token .. '\r\nx-forwarded-for: ' .. address
        .. '\r\ncontent-type: application/json\r\ncontent-length: ' .. #body .. '\r\n\r\n' .. body
    end
    line = line + 1
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format('feed %.0f %.0f %.0f %.0f\n', summary.requests, summary.duration, errors.status, broken))
end
