-- Check one request against what all proxies have on a replica, and commit it: SharedLedger.reserve.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease, 3 channel, 4 replica, 5 proxy, 6 epoch, 7 number, 8 row of the request, 9 rank (4 doubles), 10 own share (blocks)
-- Returns  answer; now (s), free blocks, retry (s), anchor of the others (steps) as packed doubles; the others' row without its anchor.
--          The last is empty where the answer is granted, fenced or unknown. Free blocks of a grant are what it leaves, and 0 where
--          any head waits.

local proxy, epoch, number, packed = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local rank = rank_of(ARGV[9])
local until_s, expected, registered = begin(proxy)
local a = load_account()
if not a or not shaped(a, packed) then return {'unknown', struct.pack('<dddd', NOW, 0, 0, 0), ''} end
if rebuild_if_due(a) then registered = redis.call('HGET', POOL, 'p|' .. proxy) end
if registered ~= epoch then return {'fenced', struct.pack('<dddd', NOW, 0, 0, 0), ''} end

local entry, newcomer = entry_of(proxy), counted(a, packed)

local function refuse(answer, retry_s)
  local others = pack_row(a, total_less(a, own_of(a, proxy, entry)))
  return {answer, struct.pack('<dddd', NOW, free_blocks(a), retry_s, a.anchor), others}
end

if entry then
  if number <= entry.upto then return refuse('stale', 0) end
  local numbers = numbers_of(entry)
  for i = 1, #numbers do
    if numbers[i] == number then return refuse('stale', 0) end
  end
end

local heads, waiting = live_heads(rank)
for i = 1, math.min(#heads, HEADS_LOOKED_AT) do
  local h = heads[i]
  if compare(h, rank) >= 0 then break end
  local row = h.proxy ~= proxy and redis.call('HGET', HEADROWS, h.field)
  if row and shaped(a, row) then
    if not head_fits(a, h, row) then
      if h.offered ~= -huge then
        h.offered = -huge
        save_head(h)
      end
      if delays(a, newcomer, h, row) then return refuse('head', OFFER_S) end
    elseif not passed_over(h) then
      offer(h)
      return refuse('head', OFFER_S)
    end
  end
end

local granted = false
if NOW < until_s and (expected == 0 or a.rewritten < expected) then
  if not entry or entry.upto < 0 then return refuse('recovering', OFFER_S) end
  if peak(a, newcomer, own_of(a, proxy, entry), nil, 1, 0) > tonumber(ARGV[10]) + SLACK then return refuse('recovering', until_s - NOW) end
else
  granted = is_empty(a)
end
local left = free_blocks(a, newcomer)
if not granted then
  if not seats_free(a, newcomer[2]) then return refuse('seats', 0) end
  if not (left >= -SLACK) then return refuse('room', 0) end
end

for i = 1, a.length do a.total[i] = a.total[i] + newcomer[i] end
redis.call('HSET', ROWS, grant_field(proxy, number), packed)
local numbers = (entry and entry.numbers or '') .. struct.pack('<d', number)
save_entry(proxy, epoch, entry and entry.upto or -1, numbers)
save_total(a)
local others = {}
for i = 1, #waiting do
  local h = waiting[i]
  if h.proxy == proxy and h.key == rank.key and h[3] == rank[3] then drop_head(h.field) else others[#others + 1] = h end
end
offer_rest(a, in_order(others))
if #others > 0 then left = 0 end
return {'granted', struct.pack('<dddd', NOW, left, 0, 0), ''}
